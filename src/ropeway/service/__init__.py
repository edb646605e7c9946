"""Use cases over an open engine, the one door for every face: typed, scoped to a tenant, without rendering."""
