package baton.connectors.onesided;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The common part of the ids of two legs. */
class RequestIdMapTest {
    @ParameterizedTest
    @CsvSource({
        "r, r",
        "chatcmpl-job-deadbeef, chatcmpl-job",
        "chatcmpl-job-deadbeef-3, chatcmpl-job",
        "cmpl-job-0-deadbeef-1234567, cmpl-job-0",
        // The client's part ends as if it were random.
        "chatcmpl-job-20261121-deadbeef, chatcmpl-job-20261121",
        "chatcmpl-job-20261121-12345678, chatcmpl-job-20261121",
        "chatcmpl-job-20261121-12345678-2, chatcmpl-job-20261121"
    })
    void theRandomEndIsNotInCommon(String requestId, String commonId) {
        assertThat(RequestIdMap.commonId(requestId)).isEqualTo(commonId);
    }

    @Test
    void legsWithOtherEndsFindEachOther() {
        RequestIdMap<Integer> map = new RequestIdMap<>();
        map.put("chatcmpl-job-20261121-12345678", 1);
        assertThat(map.find(RequestIdMap.commonId("chatcmpl-job-20261121-0badcafe")))
                .contains(1);
        assertThat(map.find("chatcmpl-job")).isEmpty();
        assertThat(map.remove("chatcmpl-job-20261121-12345678")).isEqualTo(1);
        assertThat(map.find("chatcmpl-job-20261121")).isEmpty();
        assertThat(map.isEmpty()).isTrue();
    }
}
