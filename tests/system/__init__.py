"""What only whole processes show: workers, replicas, signals, sudden ends, and the page in a browser."""
