"""Many tables: routes, a pattern, and tables made from tables. `make demo MANY=1` fills their topics."""
