"""Jobs that processes of their own can import."""

from __future__ import annotations

import time

import dagster as dg


@dg.op
def nothing() -> None: ...


@dg.op
def wait() -> None:
    time.sleep(600)


@dg.job(executor_def=dg.in_process_executor)
def short() -> None:
    nothing()


@dg.job(executor_def=dg.in_process_executor)
def long() -> None:
    wait()
