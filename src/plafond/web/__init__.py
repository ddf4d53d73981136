"""The page and its REST API: jobs, live forecast, queue, previews and data sets in a browser."""
