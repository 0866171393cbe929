package baton.connectors.mooncakestore;

import baton.store.mooncake.MooncakeRest;
import baton.store.mooncake.MooncakeSetup;
import baton.store.mooncake.StoreLibrary;

/** How the store is reached. */
sealed interface StoreAccess {
    /** Through a REST service, which has the store's memory. */
    record Rest(MooncakeRest service) implements StoreAccess {}

    /** By Mooncake's library, as a client of the store itself. */
    record Library(StoreLibrary.Found library, MooncakeSetup setup) implements StoreAccess {}
}
