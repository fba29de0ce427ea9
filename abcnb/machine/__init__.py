"""Devices, files and checks, used by everything else."""
