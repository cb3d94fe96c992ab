"""What exporters cannot say, or say in operators of their own, written in operators that the IR knows."""
