"""``python -m examples.pizza_shop``: the commands of ``kafka-lake``, and `demo` and `live`."""

from kafka_lake.cli import main

main.COMMANDS["demo"] = "Run everything once, from an embedded broker to filled tables, show the result and stop."
main.COMMANDS["live"] = "Run Dagster, Spark and an embedded broker until Ctrl-C, and produce records all the time."
main.MODULES |= dict.fromkeys(("demo", "live"), "examples.pizza_shop.commands")
main.STARTS_STACK |= {"demo", "live"}

if __name__ == "__main__":
    main.main()
