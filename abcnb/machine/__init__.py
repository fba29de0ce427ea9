"""Devices, files and checks, as everything else needs them."""
