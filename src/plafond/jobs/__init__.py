"""The queue: jobs in a database, one worker process per device, runs that survive whatever is killed."""
