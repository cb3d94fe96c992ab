"""What stages say on their way reaches the user."""

import io
from contextlib import suppress
from uuid import UUID, uuid4

import pytest
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


@pytest.mark.parametrize(("pieces", "fails", "last"), [(3, False, 100.0), (0, False, 100.0), (3, True, 30.0)])
def test_a_bar_ends_with_its_work_though_pieces_were_left_out(
    pieces: int, fails: bool, last: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that fail early need fewer measurements; a stage that fails is not at its end."""
    from flows import progress

    told: list[float] = []

    def begun(progress: float, **_: object) -> UUID:
        told.append(progress)
        return uuid4()

    monkeypatch.setattr(progress, "create_progress_artifact", begun)
    monkeypatch.setattr(progress, "update_progress_artifact", lambda _, progress: told.append(progress))
    with progress.terminal_bars(Console(file=io.StringIO())) as bars:
        stage = progress.StageProgress("engine", bars, lambda: False, lambda values, step: None)
        with suppress(ZeroDivisionError), stage.bar("engine", 10) as bar:
            bar.advance(pieces)
            assert not fails or 1 / 0
        (task,) = bars.tasks
        assert task.finished is not fails
    assert told == [0.0, last]
