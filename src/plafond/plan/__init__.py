"""What a job will take and whether it fits: phases, verdict, remedies, report."""
