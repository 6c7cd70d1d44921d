"""The servers and settings that users have: catalogs and storage, ways to authenticate, deployments.

``pytest --pair rest_s3 …`` runs any integration test with that pair of catalog and storage instead of SQLite and files.
``python -m kafka_lake_tests.contract`` runs the tests that make up the contract, and races, with each pair.
"""
