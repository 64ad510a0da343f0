"""x."""
ENTRIES=()
