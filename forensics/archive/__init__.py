"""Many runs at once: find them, analyse each in a process of its own, collect tables and the fleet page."""
