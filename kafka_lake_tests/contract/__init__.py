"""The contract that each pair of catalog and storage has to hold: the same tests over real servers.

``pytest --pair rest_s3 …`` runs any integration test with that pair instead of SQLite and local files.
``python -m kafka_lake_tests.contract`` (`make contract`) runs all pairs and writes the table of docs/production.md.
"""
