"""Models for a device from trials."""

from collections.abc import Mapping, Sequence

import tailor_ir
from profiling_agents.client import ModelJob
from profiling_agents.messages import Format, Measurement, Precision
from tailor_ir import OperatorFeature, SuperNet
from tasks.evaluation.conversion import ConversionError, ConversionLimits
from tasks.evaluation.executorch.programs import subnet_jobs
from tasks.evaluation.ncnn import kernels
from tasks.evaluation.ncnn.conversion import convert_operators
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.measuring.in_network.networks import WholeSubNet, ncnn_subnet, onnx_subnet
from tasks.measuring.in_network.trials import Trial


class SubNetMaker:
    """Makes SubNets in the device's format and precision; for ncnn it converts each operator only once."""

    def __init__(
        self, net: SuperNet, model_format: Format, limits: ConversionLimits, precision: Precision = "fp32"
    ) -> None:
        self.net = net
        self._format, self._limits, self._precision = model_format, limits, precision
        self._snippets: dict[OperatorFeature, NcnnFiles | ConversionError] = {}

    def implementations(self, operators: Mapping[str, OperatorFeature]) -> dict[str, tuple[str, ...]]:
        """Digest -> implementations besides the runtime's own choice, for the operators that have any."""
        if self._format != "ncnn":
            return {}
        self._convert(list(operators.values()))
        snippets = {digest: self._snippets[feature] for digest, feature in operators.items()}
        found = {digest: kernels.implementations(one) for digest, one in snippets.items() if isinstance(one, NcnnFiles)}
        return {digest: names for digest, names in found.items() if names}

    def make(self, chunk: Sequence[tuple[str, Trial]]) -> tuple[list[WholeSubNet], list[Measurement]]:
        """The SubNets, and a failed measurement for each trial that cannot be converted."""
        if self._format == "executorch":
            return self._programs(chunk)
        if self._format == "onnx":
            return self._onnx(chunk)
        self._convert([feature for _, trial in chunk for feature in self.net.operators(trial.config)])
        made: list[WholeSubNet] = []
        failures: list[Measurement] = []
        for key, trial in chunk:
            outcomes = {feature: self._snippets[feature] for feature in self.net.operators(trial.config)}
            errors = {f: error for f, error in outcomes.items() if isinstance(error, ConversionError)}
            if errors:
                feature, error = next(iter(errors.items()))
                failures.append(Measurement.failed(key, f"{feature.operator} {feature.digest}: {error}"))
            else:
                snippets = {
                    feature: kernels.with_implementation(one, trial.implementations.get(feature.digest, ""))
                    for feature, one in outcomes.items()
                    if isinstance(one, NcnnFiles)
                }
                made.append(ncnn_subnet(self.net, key, trial.config, snippets))
        return made, failures

    def _onnx(self, chunk: Sequence[tuple[str, Trial]]) -> tuple[list[WholeSubNet], list[Measurement]]:
        made: list[WholeSubNet] = []
        failures: list[Measurement] = []
        for key, trial in chunk:
            try:
                made.append(onnx_subnet(self.net, key, trial.config, self._precision))
            except ConversionError as error:
                failures.append(Measurement.failed(key, str(error)))
        return made, failures

    def _programs(self, chunk: Sequence[tuple[str, Trial]]) -> tuple[list[WholeSubNet], list[Measurement]]:
        configs = {key: trial.config for key, trial in chunk}
        outcomes = subnet_jobs({key: (self.net, config) for key, config in configs.items()}, self._limits)
        placed = {key: self.net.placed_operators(config) for key, config in configs.items()}
        made = [WholeSubNet(placed[key], one) for key, one in outcomes.items() if isinstance(one, ModelJob)]
        errors = {key: str(one) for key, one in outcomes.items() if isinstance(one, ConversionError)}
        return made, [Measurement.failed(key, error) for key, error in errors.items()]

    def _convert(self, features: Sequence[OperatorFeature]) -> None:
        new = [feature for feature in dict.fromkeys(features) if feature not in self._snippets]
        models = [tailor_ir.operator_model(feature) for feature in new]
        self._snippets.update(zip(new, convert_operators(models, self._limits), strict=True))
