"""All wrong versions of production steps: the one list that runs, tests and documents use."""

from __future__ import annotations

from tests.simulation.mutant import Mutant
from tests.simulation.mutants_bags import BAGS
from tests.simulation.mutants_bounds import BOUNDS
from tests.simulation.mutants_clocks import CLOCKS
from tests.simulation.mutants_leases import LEASES
from tests.simulation.mutants_lending import LENDING
from tests.simulation.mutants_modes import MODES
from tests.simulation.mutants_moves import MOVES
from tests.simulation.mutants_objects import OBJECTS
from tests.simulation.mutants_packs import PACKS
from tests.simulation.mutants_policies import POLICIES
from tests.simulation.mutants_recipes import RECIPES
from tests.simulation.mutants_renewals import RENEWALS
from tests.simulation.mutants_restarts import RESTARTS
from tests.simulation.mutants_sessions import SESSIONS
from tests.simulation.mutants_sets import SETS
from tests.simulation.mutants_sharing import SHARING
from tests.simulation.mutants_tenancy import TENANCY
from tests.simulation.mutants_threads import THREADS
from tests.simulation.mutants_trust import TRUST

MUTANTS: tuple[Mutant, ...] = (
    *(BAGS + PACKS + LEASES + CLOCKS + SHARING + SESSIONS + RENEWALS + MOVES + TENANCY + MODES + POLICIES + SETS),
    *(BOUNDS + TRUST + RESTARTS + RECIPES + OBJECTS + LENDING + THREADS),
)
