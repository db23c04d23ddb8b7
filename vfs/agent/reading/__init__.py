"""What is read: names, objects, replicas, and what is fetched ahead."""
