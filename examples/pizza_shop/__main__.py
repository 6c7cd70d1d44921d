"""``python -m examples.pizza_shop``: the commands of ``kafka-lake``, and `demo` and `live`."""

from kafka_lake.cli import main

app = main.command_line(dict.fromkeys(("demo", "live"), "examples.pizza_shop.commands"))

if __name__ == "__main__":
    main.main(app)
