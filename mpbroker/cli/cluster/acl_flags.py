"""The flags of `mpbroker acl`; what its commands do is in `acl`."""

from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import DEFAULT_BOOTSTRAP, Bootstrap, ClusterAddress, CommandConfig, DryRun, Json, Yes

acl_app = App(no_args_is_help=True)

Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic, * for all; repeatable.")
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="A consumer group, * for all; repeatable.")
]
TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="* for all; repeatable.")
]
DelegationTokens = Annotated[
    list[str] | None,
    typer.Option("--delegation-token", metavar="ID", help="A delegation token, * for all; repeatable."),
]
UserPrincipals = Annotated[
    list[str] | None,
    typer.Option(
        "--user-principal", metavar="User:NAME", help="Whose delegation tokens, * for all; repeatable."
    ),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[
    bool, typer.Option("--prefixed", help="The names are beginnings of names, and none of them is *.")
]
Allowed = Annotated[
    list[str] | None,
    typer.Option("--allow-principal", metavar="User:NAME", help="User:* for all; repeatable."),
]
Denied = Annotated[
    list[str] | None, typer.Option("--deny-principal", metavar="User:NAME", help="Wins over all that allow.")
]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="ADDRESS", help="Clients at this address; default: all.")
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="NAME", help="Read, Write, Create, Describe, All …; repeatable."),
]
Producer = Annotated[
    bool, typer.Option("--producer", help="Write, Describe and Create of topics; Write of transactional ids.")
]
Consumer = Annotated[
    bool, typer.Option("--consumer", help="Read and Describe of topics, Read of groups; needs both.")
]
Idempotent = Annotated[bool, typer.Option("--idempotent", help="IdempotentWrite of the cluster.")]


@acl_app.command("add")
def acl_add(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: DelegationTokens = None,
    user_principal: UserPrincipals = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    allow_principal: Allowed = None,
    deny_principal: Denied = None,
    host: Hosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Allow principals to do something, or deny it."""
    from mpbroker.cli.cluster import acl as command

    made = command.entries(
        command.Resources(
            topic, group, transactional_id, delegation_token, user_principal, cluster, prefixed
        ),
        command.Principals(allow_principal or [], deny_principal or [], host or []),
        command.AclOperations(operation or [], producer, consumer, idempotent),
    )
    command.add(ClusterAddress(bootstrap, command_config), made, dry_run=dry_run, as_json=json)


@acl_app.command("remove")
def acl_remove(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: DelegationTokens = None,
    user_principal: UserPrincipals = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    allow_principal: Allowed = None,
    deny_principal: Denied = None,
    host: Hosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Remove access control lists.

    These are the ones that `add` with the same flags adds; without a principal, all about the resources.
    """
    from mpbroker.cli.cluster import acl as command

    found = command.filters(
        command.Resources(
            topic, group, transactional_id, delegation_token, user_principal, cluster, prefixed
        ),
        command.Principals(allow_principal or [], deny_principal or [], host or []),
        command.AclOperations(operation or [], producer, consumer, idempotent),
    )
    where = ClusterAddress(bootstrap, command_config)
    command.remove(where, found, dry_run=dry_run, is_sure=yes, as_json=json)


@acl_app.command("list")
def acl_list(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: DelegationTokens = None,
    user_principal: UserPrincipals = None,
    cluster: Cluster = False,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="User:NAME", help="Only entries that name it.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List access control lists.

    For a topic, group or id also those for a prefix of it and for all.
    """
    from mpbroker.cli.cluster import acl as command

    resources = command.Resources(topic, group, transactional_id, delegation_token, user_principal, cluster)
    command.show_list(ClusterAddress(bootstrap, command_config), resources, principal, as_json=json)
