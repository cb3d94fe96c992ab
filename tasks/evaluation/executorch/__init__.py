"""Programs for ExecuTorch (.pte): SubNets and single operators, lowered to XNNPACK."""
