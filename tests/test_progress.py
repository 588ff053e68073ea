"""Ctrl-C during a long computation is noted first and raised the second time, whoever asks."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from neuronfair.progress import record_interruption


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _twice() -> None:
    _press()
    _press()


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with record_interruption(absorb=True) as interruption:
        assert not interruption.requested
        _press()
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            _press()
    with pytest.raises(KeyboardInterrupt), record_interruption(absorb=True):
        _twice()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_callback_may_stop_it():
    before = signal.getsignal(signal.SIGINT)
    with record_interruption(absorb=True) as interruption:
        raise KeyboardInterrupt
    assert interruption.requested
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_of_the_block_passes_unless_it_is_absorbed():
    with pytest.raises(KeyboardInterrupt), record_interruption():
        raise KeyboardInterrupt


def test_other_errors_pass():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="other"), record_interruption(absorb=True):
        raise ValueError("other")
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_signals_are_left_alone():
    seen = []

    def work() -> None:
        with record_interruption(absorb=True) as interruption:
            seen.append((interruption.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.getsignal(signal.SIGINT))]
