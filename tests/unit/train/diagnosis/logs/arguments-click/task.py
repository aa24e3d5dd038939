import click
@click.command()
@click.option("--rank", "-r", type=int, required=True)
@click.option("--num-workers", type=click.IntRange(1), required=True)
@click.option("--epochs", default=1)
def main(**given):
    print("SEEN", given)
main()
