"""Change events of Debezium, Maxwell and Canal become rows and what is done to them."""
