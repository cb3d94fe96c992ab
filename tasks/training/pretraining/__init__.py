"""Two training stages: a backbone is made elastic and trained on first data, then joined to a head and tuned on second data.
Source: AdaptiveNet (MobiCom 2023) §6.
"""
