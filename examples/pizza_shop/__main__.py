"""``python -m examples.pizza_shop``: the commands of ``kafka-lake``, and `demo` and `live`."""

from kafka_lake.cli import main

main.COMMANDS |= dict.fromkeys(("demo", "live"), "examples.pizza_shop.commands")
main.STARTS_STACK |= {"demo", "live"}

if __name__ == "__main__":
    main.main()
