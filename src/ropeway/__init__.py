"""Durable background jobs: see README.md."""
