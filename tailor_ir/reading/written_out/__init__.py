"""Functions that exporters cannot express in standard operators, rewritten in operators that the IR knows."""
