"""Optional: SubNets split over several devices, as plans, as parts of a bundle, and searched jointly with exits and codings."""
