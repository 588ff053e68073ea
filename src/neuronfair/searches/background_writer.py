"""Work that is done beside the search: findings are confirmed and written while the walkers go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager


class BackgroundWriter:
    """Does one piece of work at a time, in a thread if it has one."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool
        self._going: Future[object] | None = None

    def do(self, work: Callable[[], object]) -> None:
        """Begin a piece of work as soon as the one before is done; what that one has raised is raised here."""
        self.wait()
        if self._pool is None:
            work()
        else:
            self._going = self._pool.submit(work)

    def wait(self) -> None:
        """Wait for the piece that is being done, and raise what it raises."""
        going, self._going = self._going, None
        if going is not None:
            going.result()


@contextmanager
def background_writer(threaded: bool) -> Iterator[BackgroundWriter]:
    """Give somebody who does work in a thread, or at once; what is begun is done at the end, whatever happens."""
    if not threaded:
        yield BackgroundWriter(None)
        return
    with ThreadPoolExecutor(1) as pool:
        writer = BackgroundWriter(pool)
        try:
            yield writer
        except BaseException as error:
            try:
                writer.wait()
            except Exception as other:  # what could not be written matters more
                raise other from error
            raise
