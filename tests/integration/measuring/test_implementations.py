"""Several measured implementations of one operator: which of them are measured, and which one counts."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from profiling_agents.client import local_agent
from profiling_agents.messages import MeasureSettings
from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, ChosenImplementations
from tasks.measuring import operators as enumerate_stage
from tasks.measuring import profile
from tasks.measuring.lut import Lut
from tasks.measuring.trials import Example, ImplementationRules, Trial, mixed, studied
from tests.support.ir.networks import perturb
from tests.support.tables.lut_entries import DEVICE, entry, failed


def test_a_table_keeps_all_implementations_of_an_operator(tmp_path: Path) -> None:
    own, fast = entry("a", p50_ms=1.0), entry("a", implementation="sgemm", p50_ms=0.25, p90_ms=0.3)
    slow = entry("b", implementation="direct", p50_ms=0.9, p90_ms=0.95)
    Lut.open(tmp_path, DEVICE).append([own, fast, slow, entry("b"), failed("c")])
    lut = Lut.open(tmp_path)
    assert lut.get("a") == lut.of_method("a", "alone") == fast
    assert lut.get("b") == entry("b")
    assert lut.get("c") == failed("c")
    assert lut.implementations("a") == (own, fast)
    assert lut.chosen("abc") == {"a": "sgemm"}
    assert lut.summary()["implementations"] == {"sgemm": 1}
    again = lut.snapshot(tmp_path / "own", "ab")
    assert (again.implementations("a"), again.implementations("b")) == ((own, fast), (entry("b"), slow))


@pytest.fixture(scope="module")
def net() -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    model = perturb(timm.create_model("test_resnet"))
    assert isinstance(model.pretrained_cfg, dict)
    return tailor_ir.compile(model, torch.zeros(1, *model.pretrained_cfg["input_size"]))


def test_rules_follow_the_nearest_measured_operators_of_a_class(net: tailor_ir.SuperNet) -> None:
    features = [f for f in net.unique_operators() if f.operator == "Conv" and f.parameter_shapes[0][2:] == (3, 3)]
    same = [f for f in features if f.attributes == features[0].attributes]
    same.sort(key=lambda feature: (feature.output_shapes[0][2], feature.input_shapes[0][1]))
    assert len(same) > 8
    examples = [Example(f, "sgemm", 0.5) for f in same[:4]] + [Example(f, "sgemm", 1.5) for f in same[-4:]]
    rules = ImplementationRules([*examples, *(Example(f, "direct", 1.0) for f in same[:2])])
    assert rules.worth_measuring(same[0], ("sgemm", "direct")) == ("sgemm",)
    assert rules.worth_measuring(same[-1], ("sgemm", "direct")) == ()
    other = next(f for f in net.unique_operators() if f.operator == "Conv" and f.parameter_shapes[0][2:] == (1, 1))
    assert rules.worth_measuring(other, ("direct",)) == ("direct",)  # nothing is known of its class


def test_every_operator_is_timed_by_each_implementation_that_is_worth_it(net: tailor_ir.SuperNet) -> None:
    configs = [net.space.sample(np.random.default_rng(seed)) for seed in range(40)]
    operators = {f.digest: f for config in configs for f in net.operators(config)}
    candidates = {digest: ("sgemm", "direct") for digest, feature in operators.items() if feature.operator == "Conv"}
    first, others = studied(net, configs, candidates)
    assert first[0] == Trial(configs[0])
    assert [dict(trial.implementations) for trial in first[1:3]] == [
        {f.digest: name for f in net.operators(configs[0]) if f.digest in candidates} for name in ("sgemm", "direct")
    ]
    rules = ImplementationRules([Example(f, "direct", 2.0) for f in operators.values() if f.operator == "Conv"])
    more = list(mixed(net, others, candidates, rules, Counter()))
    seen: dict[str, set[str]] = {}
    for trial in more:
        for feature in net.operators(trial.config):
            seen.setdefault(feature.digest, set()).add(trial.implementations.get(feature.digest, ""))
    assert all({"", "sgemm"} <= seen[digest] for digest in seen.keys() & candidates.keys())
    checks = [trial for trial in more if trial.checks]
    assert checks
    assert {name for trial in checks for name in trial.implementations.values()} == {"direct"}
    assert all("direct" not in trial.implementations.values() for trial in more if not trial.checks)
    assert {net.space.digest(trial.config) for trial in more} == {net.space.digest(config) for config in others}
    keys = [trial.key(net) for trial in [*first, *more]]
    assert len(set(keys)) == len(keys)
    assert more == list(mixed(net, others, candidates, rules, Counter()))  # so that a killed run goes on


def test_profiling_finds_faster_kernels_and_says_which(tmp_path: Path) -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Conv2d(512, 512, 3, padding=1), torch.nn.ReLU()]
            self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 512, 3, padding=1), torch.nn.ReLU(), *layers)
            self.head = torch.nn.Linear(512, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x).mean((2, 3)))

    torch.manual_seed(0)
    wide = tailor_ir.compile(Wide().eval(), torch.zeros(1, 3, 4, 4))
    wide.save(tmp_path / "supernet")
    enumerate_stage.run(tmp_path / "supernet", tmp_path, Silent())
    settings = profile.Settings(subnet=MeasureSettings(warmup_ms=2.0, time_cap_ms=40.0, layers_ms=40.0))
    # 512 channels on a map of 4 x 4: Winograd's transformed weights are several times the weights
    large = next(f for f in wide.operators(wide.max_config) if f.parameter_shapes[:1] == ((512, 512, 3, 3),))
    supernet = tmp_path / "supernet"
    with local_agent("ncnn") as agent, agent.lease():
        for attempt in range(3):  # on a busy machine, what is gained may be below the noise
            out = tmp_path / f"out{attempt}"
            out.mkdir()
            result = profile.run(settings, tmp_path, agent, out, Silent(), supernet)
            again = profile.run(settings, tmp_path, agent, out, Silent(), supernet)
            lut = Lut.open(out / profile.LUT_FOLDER)
            best = lut.get(large.digest)
            if best is not None and best.implementation:
                break
    study = result["implementations"]
    assert study is not None
    assert study["operators"] >= 2
    assert study["measured"] + study["left_out"] >= study["operators"]
    lines = read_lines(out / profile.SUBNETS_FILE)
    assert study["trials"] == len(lines) > study["subnets"]
    convolutions = [feature for feature in wide.unique_operators() if feature.operator == "Conv"]
    assert all(len(lut.implementations(feature.digest)) > 1 for feature in convolutions)
    own, *_ = lut.implementations(large.digest)
    assert best is not None
    assert best.p50_ms is not None
    assert own.p50_ms is not None
    assert best.implementation in ("sgemm", "direct")
    assert best.p50_ms < own.p50_ms
    assert ChosenImplementations.read(out / IMPLEMENTATIONS_FILE).operators[large.digest] == best.implementation
    assert again["measured_now"] == 0
