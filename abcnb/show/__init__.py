"""What people see: figures, panels, HTML pages, and the reports made from the notebooks."""
