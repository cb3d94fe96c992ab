"""Networks for the presets that timm does not have, each the largest SubNet of a published SuperNet: model=callable."""
