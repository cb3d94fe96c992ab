"""The tables of a registry. Times are seconds since 1970, UTC; tokens are stored only as their sha256."""

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 2
"""Version of these tables. `tasks.operations.fleet.registry.upgrades` upgrades earlier ones; a later one is refused."""

metadata = MetaData()

schema = Table(
    "fleet_schema",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("window_s", Float, nullable=False),  # length of the windows of telemetry
)

enrolments = Table(
    "enrolments",
    metadata,
    Column("token_hash", String(64), primary_key=True),
    Column("owner", String(256), nullable=False),
    Column("expires_s", Float, nullable=False),
    Column("device", String(32)),  # device that has used it; null: none yet
)

devices = Table(
    "devices",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("name", String(256), nullable=False),
    Column("kind", String(256), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("owner", String(256), nullable=False),
    Column("enrolled_s", Float, nullable=False),
    Column("seen_s", Float, nullable=False),
    Column("sequence", BigInteger, nullable=False, default=0),  # sequence number of its latest telemetry
    Column("told", String(64)),  # sha256 of that telemetry, which detects repeated messages
    Column(
        "restored", Integer, nullable=False, server_default="0"
    ),  # how often it sent telemetry from an older copy of its folder
    Column("restored_s", Float),  # last time of this
    Column("lut", String(256)),  # name of the look-up table of its kind
    Column("verdict", String(16)),  # of the latest check by its kind: sound, odd, failed, unknown
    Column("verdict_reason", Text),
    Column("checked_s", Float),
    Column("assigned", String(64)),  # digest of the bundle that it should run; null: whatever it has
    Column("active", String(64)),  # digest of the bundle that it reports to run
)

bundles = Table(
    "bundles",
    metadata,
    Column("digest", String(64), primary_key=True),  # sha256 of bundle.json
    Column("name", String(256), nullable=False),
    Column("signature", String(64)),
    Column("added_s", Float, nullable=False),
)

telemetry = Table(
    "telemetry",
    metadata,
    Column("device", String(32), ForeignKey("devices.id", ondelete="CASCADE"), primary_key=True),
    Column("window", Integer, primary_key=True),  # its start over the length of windows
    Column("bundle", String(64), primary_key=True),  # bundle that answered; empty: none of this registry
    Column("requests", Float, nullable=False),
    Column("log_latency", Float, nullable=False),
    Column("in_time", Float, nullable=False),
    Column("confidence", Float, nullable=False),
    Column("labelled", Float, nullable=False),
    Column("agreed", Float, nullable=False),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("bundle", String(64), ForeignKey("bundles.digest"), nullable=False),
    Column("kinds", Text, nullable=False),  # JSON; empty: all
    Column("settings", Text, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("state", String(16), nullable=False),  # running, asking, halted, complete
    Column("stage", Integer, nullable=False),
    Column("stage_window", Integer, nullable=False),  # window in which the stage began
    Column("looked_window", Integer, nullable=False),  # last window that was decided on
)

rollout_devices = Table(
    "rollout_devices",
    metadata,
    Column("rollout", Integer, ForeignKey("rollouts.id"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("device", String(32), nullable=False),
    Column("kind", String(256), nullable=False),
    Column("before", String(64)),  # bundle that it was assigned before
    Column("stage", Integer),  # stage in which it gets the bundle; null: not yet
    Column("compared", Boolean, nullable=False, default=False),  # whether the test of the running stage looks at it
)

rollout_events = Table(
    "rollout_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("rollout", Integer, ForeignKey("rollouts.id"), nullable=False, index=True),
    Column("at_s", Float, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("action", String(16), nullable=False),
    Column("reason", Text, nullable=False),
)
