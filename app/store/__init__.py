"""The store: conversations, chunks, leases, calibrations, usage and more, in SQLite or PostgreSQL. All SQL is here."""

from app.store.calibrations import CalibrationKey, LearnedWindow, StoredCalibration
from app.store.conversations import (
    ConversationList,
    ConversationSeen,
    ConversationStatus,
    ListedConversation,
    Pin,
    SeenTenant,
    Sorting,
    StoredConversation,
    Wanted,
)
from app.store.engine import (
    AccessRefused,
    DatabaseUnusable,
    DatabaseURLError,
    MigrationFailed,
    SchemaTooNew,
    SchemaTooOld,
    StatementRefused,
    StoreError,
    StoreUnavailable,
    UnknownCursor,
    WrongSecret,
)
from app.store.histories import LatestHistory, StoredHistory, StoredMessage
from app.store.leases import Busy, Lease
from app.store.store import Check, Store
from app.store.tables import Order, Page, Paging
from app.store.usage import (
    DayUsage,
    Grouping,
    StoredUsage,
    TurnUsage,
    UsageGroup,
    UsageOverview,
    UsagePage,
    UsageRecord,
    UsageReport,
    UsageSum,
    UsageSums,
)
