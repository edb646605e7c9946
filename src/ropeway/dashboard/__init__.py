"""The dashboard: pages for people, over the service layer."""

from ropeway.dashboard.app import Dashboard

__all__ = ["Dashboard"]
