/** The connector that hands KV caches over through a directory that both instances can reach, as vLLM's ExampleConnector does. */
@NullMarked
package baton.connectors.sharedstorage;

import org.jspecify.annotations.NullMarked;
