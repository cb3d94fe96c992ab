"""What stages say on their way reaches the user."""

import io
from contextlib import suppress
from uuid import UUID, uuid4

import pytest
from rich.console import Console


def test_what_a_stage_says_at_once_is_a_line_on_the_terminal() -> None:
    from prefect.logging import disable_run_logger

    from flows.pipeline.progress import RunProgress, StageProgress, terminal_bars

    terminal = io.StringIO()
    with disable_run_logger(), terminal_bars(Console(file=terminal, width=120)) as bars:
        progress = StageProgress("finetune", bars, lambda: False, lambda values, step: None, RunProgress())
        progress.say("out of memory with micro-batches of 64 images; goes on with 32 [said]")
    lines = [line.rstrip() for line in terminal.getvalue().splitlines()]
    assert "finetune: out of memory with micro-batches of 64 images; goes on with 32 [said]" in lines


@pytest.mark.parametrize(("pieces", "fails"), [(3, False), (0, False), (3, True)])
def test_a_bar_ends_with_its_work_though_pieces_were_left_out(pieces: int, fails: bool) -> None:
    """Engines that fail early need fewer measurements; a stage that fails is not at its end."""
    from flows.pipeline import progress

    with progress.terminal_bars(Console(file=io.StringIO())) as bars:
        whole = progress.RunProgress()
        stage = progress.StageProgress("runtime_options", bars, lambda: False, lambda values, step: None, whole)
        with suppress(ZeroDivisionError), stage.bar("runtime_options", 10) as bar:
            bar.advance(pieces)
            assert not fails or 1 / 0
        (task,) = bars.tasks
        assert task.finished is not fails


def test_a_run_has_one_progress_artifact_whatever_its_stages_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each artifact takes room in the graph of Prefect's page, and lives as long as it is updated."""
    from flows.pipeline import progress

    begun: list[str] = []
    told: list[tuple[float, str]] = []

    def begin(progress: float, key: str, description: str) -> UUID:
        begun.append(key)
        told.append((progress, description))
        return uuid4()

    monkeypatch.setattr(progress, "create_progress_artifact", begin)
    monkeypatch.setattr(
        progress, "update_progress_artifact", lambda _, progress, description: told.append((progress, description))
    )
    monkeypatch.setattr(progress, "UPDATE_SECONDS", -1.0)
    whole = progress.RunProgress()
    whole.begin(2)
    with progress.terminal_bars(Console(file=io.StringIO())) as bars:
        for name in ("profile/ncnn", "search/ncnn"):
            stage = progress.StageProgress(name, bars, lambda: False, lambda values, step: None, whole)
            for part in ("first", "second"):
                with stage.bar(part, 4, done=1) as bar:
                    bar.advance()
            whole.end_stage()
    assert begun == ["progress"]
    assert told[:3] == [
        (0.0, "0 of 2 stages"),
        (0.0, "0 of 2 stages; first ncnn 1 of 4"),
        (0.0, "0 of 2 stages; first ncnn 2 of 4"),
    ]
    assert told[-1] == (100.0, "2 of 2 stages")


def test_progress_is_told_at_most_every_few_seconds_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.pipeline import progress

    told: list[str] = []
    monkeypatch.setattr(progress, "create_progress_artifact", lambda **_: uuid4())
    monkeypatch.setattr(progress, "update_progress_artifact", lambda _, progress, description: told.append(description))
    whole = progress.RunProgress()
    whole.begin(3)
    for number in range(4):  # one follows the walk
        whole.tell(number, "at work")
        whole.tell(number, None)
        whole.end_stage()
    assert told == ["3 of 3 stages"]
