"""What stages say on their way reaches the user."""

import io

from rich.console import Console


def test_what_a_stage_says_at_once_is_a_line_on_the_terminal() -> None:
    from prefect.logging import disable_run_logger

    from flows.progress import StageProgress, terminal_bars

    terminal = io.StringIO()
    with disable_run_logger(), terminal_bars(Console(file=terminal, width=120)) as bars:
        progress = StageProgress("finetune", bars, lambda: False, lambda values, step: None)
        progress.say("out of memory with micro-batches of 64 images; goes on with 32 [said]")
    lines = [line.rstrip() for line in terminal.getvalue().splitlines()]
    assert "finetune: out of memory with micro-batches of 64 images; goes on with 32 [said]" in lines
