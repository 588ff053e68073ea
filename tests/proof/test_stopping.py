"""Ctrl-C between two steps."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from neuronfair.proof.decide.prove import stopping


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _twice() -> None:
    _press()
    _press()


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with stopping() as stop:
        assert not stop.requested
        _press()
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            _press()
    with pytest.raises(KeyboardInterrupt), stopping():
        _twice()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_callback_may_stop_it():
    before = signal.getsignal(signal.SIGINT)
    with stopping() as stop:
        raise KeyboardInterrupt
    assert stop.requested
    assert signal.getsignal(signal.SIGINT) is before


def test_other_errors_pass():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="other"), stopping():
        raise ValueError("other")
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_signals_are_left_alone():
    seen = []

    def work() -> None:
        with stopping() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.getsignal(signal.SIGINT))]
