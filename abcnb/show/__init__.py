"""What people see: figures, panels, HTML pages, and the reports made of the notebooks."""
