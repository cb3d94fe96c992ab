"""What stays on a device after deployment: decides with tables, without torch and without the IR."""
