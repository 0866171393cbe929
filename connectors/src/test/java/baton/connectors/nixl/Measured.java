package baton.connectors.nixl;

import baton.kv.connector.Measurement;
import java.util.List;

/** The measurements of engines. */
final class Measured {
    private Measured() {}

    /** The sum of all that has the name. */
    static double count(String name, List<Measurement> measured) {
        return measured.stream()
                .filter(each -> each.name().equals(name))
                .mapToDouble(Measurement::value)
                .sum();
    }

    /** The causes of refused hand-overs. */
    static List<String> rejections(List<Measurement> measured) {
        return measured.stream()
                .filter(each -> each.name().equals("baton:kv_handoff_rejected"))
                .map(each -> String.valueOf(each.labels().get("cause")))
                .toList();
    }
}
