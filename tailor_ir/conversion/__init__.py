"""ONNX files with fewer nodes: onnxslim, and own rules where they make runtimes faster, each checked by outputs."""

from tailor_ir.conversion.engine import Conversion, convert, count_nodes, trim_kernels
from tailor_ir.conversion.outputs import examine, run, session_of
