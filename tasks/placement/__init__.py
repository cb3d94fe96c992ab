"""Optional: SubNets split over several devices, as plans and as parts of a bundle."""
