"""The near future of a signal, for example the load index: by an autoregressive model if a running backtest finds it better.

[Sensing](docs/runtime_sensing.md#forecast) explains how.
"""

from adaptive_runtime.state.forecast.autoregression import Autoregression
from adaptive_runtime.state.forecast.backtest import Backtest
from adaptive_runtime.state.forecast.forecaster import Forecast, Forecaster, ForecastMethod

__all__ = ["Autoregression", "Backtest", "Forecast", "ForecastMethod", "Forecaster"]
