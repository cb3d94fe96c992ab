"""Networks for the presets that timm lacks, each the largest SubNet of a published SuperNet: model=callable."""
