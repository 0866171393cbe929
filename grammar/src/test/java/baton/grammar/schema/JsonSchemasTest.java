package baton.grammar.schema;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.grammar.OutputFormat;
import baton.grammar.automaton.Grammar;
import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import java.util.function.IntFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class JsonSchemasTest {
    private static final SchemaOptions COMPACT = new SchemaOptions(false, true, Optional.empty(), false);

    /** A schema, documents that are valid and documents that are not; apostrophes stand for quotation marks in schemas. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "true | {} ; [1,\"a\",null] ; -0.5e+10 ; \"\\ud83d\\ude00\" | {a:1} ; [1,] ; 01 ; \"\\ud83d\" ; \"\\udc00\" ; \"\t\" ; .5",
                "{'type':['integer','null']} | 1 ; -0 ; 1.0 ; 1e2 ; null | 1.5 ; 1e-2 ; true ; \"1\"",
                "{'type':'number','minimum':-1.5,'exclusiveMaximum':100} | -1.5 ; -1.50 ; 99.999 ; 0 ; 9e1 ; 1.5e-7 ; -0 | -1.51 ; 100 ; 100.0 ; 1e2 ; -2 ; 1e10",
                "{'type':'integer','minimum':5,'maximum':1200} | 5 ; 1200 ; 999.0 | 1e3 ; 4 ; 1201 ; -5 ; 05 ; 2e3 ; 12000",
                "{'exclusiveMinimum':0} | 0.001 ; 1.0E-5 ; 1e99 ; \"a\" | 0 ; -1 ; 0.000 ; -1e3",
                "{'type':'number','multipleOf':0.25} | 0.75 ; -2 ; 1.500 | 0.3 ; 1.255 ; 0.1",
                "{'type':'integer','multipleOf':7,'minimum':10} | 14 ; 700 ; 21.0 | 7 ; 15 ; 22",
                "{'const':1.50} | 1.5 ; 1.500 | 1.5001 ; 1 ; 15e-1",
                "{'enum':[1000000,'a\\n',null,[1,{'b':2}]]} | 1e6 ; 1000000.0 ; \"a\\n\" ; \"\\u0061\\u000A\" ; null ; [1, {\"b\" : 2.0}] | \"a\" ; [1] ; 1e7 ; []",
                "{'enum':[0,-2.50,100000,-0.0003,1e70]} | 0 ; -0 ; 0.00 ; -2.5 ; -2.500 ; 100000 ; 1.0e+5 ; 1E05 ; -3e-4 ; -0.00030 ; 1e70 | 2.5 ; 10000 ; 1e4 ; -3e4 ; 1.5e5 ; 0e1 ; 1e-70",
                "{'enum':['','a','ab','abc','abd','b😀','b😁']} | \"\" ; \"a\" ; \"abd\" ; \"b😀\" ; \"b\\ud83d\\ude01\" | \"abe\" ; \"b\" ; \"abcd\"",
                "{'type':'string','minLength':2,'maxLength':3} | \"ab\" ; \"\\\"\\u00e9c\" ; \"\\ud83d\\ude00x\" ; \"😀😀😀\" | \"a\" ; \"abcd\" ; 1",
                "{'type':'string','pattern':'^a.c'} | \"abcd\" ; \"\\u0061xc\" ; \"a\\\"c\" | \"xabc\" ; \"a\\nc\" ; \"ac\"",
                "{'type':'string','pattern':'^(ab)*$','minLength':3,'maxLength':2083} | \"abab\" ; \"\\u0061bab\" | \"\" ; \"ab\" ; \"abc\" ; \"aba\"",
                "{'type':'string','pattern':'^(aaa)*$','minLength':4,'maxLength':8} | \"aaaaaa\" ; \"aaa\\u0061\\u0061\\u0061\" | \"aaa\" ; \"aaaa\" ; \"aaaaaaaaa\" ; \"\"",
                "{'type':'string','pattern':'^.*é.*$','minLength':2,'not':{'const':'éb'}} | \"éa\" ; \"é😀\" ; \"\\u00e9\\ud83d\\ude00\" ; \"éébb\" | \"é\" ; \"éb\" ; \"\\u00e9b\" ; \"ab\"",
                "{'type':'string','format':'uri','minLength':1,'maxLength':2083} | \"https://a.b/c\" | \"\" ; \"a b\"",
                "{'type':'string','format':'date-time','maxLength':64} | \"2024-02-29T23:59:59Z\" | \"2024\"",
                "{'type':'string','format':'hostname','maxLength':5} | \"a.bc\" ; \"a.bcd\" | \"a.bcde\"",
                "{'type':'string','format':'email','minLength':6,'maxLength':8} | \"ab@c.de\" ; \"\\u0061@bcd.ef\" | \"a@b.c\" ; \"abcd@ef.gh\" ; \"abcdefg\"",
                "{'type':'string','pattern':'^\\\\p{L}+$','maxLength':3} | \"aé\" ; \"\\u00e9𝒜x\" ; \"\\ud835\\udc9c\" | \"\" ; \"a1\" ; \"abcd\"",
                "{'pattern':'b+','maxLength':3} | \"abb\" ; 5 | \"abbc\" ; \"a\"",
                "{'type':'object','properties':{'a':{'type':'integer'},'b':true},'required':['b'],'additionalProperties':false} | {\"b\":[]} ; {\"a\":1,\"b\":2} ; { \"\\u0061\" : 1 , \"b\" : 2 } | {} ; {\"a\":1} ; {\"b\":1,\"a\":2} ; {\"a\":\"x\",\"b\":1} ; {\"b\":1,\"c\":1} ; {\"b\":1,\"b\":1}",
                "{'type':'object','properties':{'a':{'type':'integer'}},'additionalProperties':{'type':'null'}} | {} ; {\"ab\":null} ; {\"a\":1,\"\":null,\"b\":null} | {\"a\":null} ; {\"b\":1} ; {\"\\u0061\":null}",
                "{'type':'object','patternProperties':{'^n_':{'type':'number'},'x$':{'minimum':5}},'additionalProperties':false} | {\"n_a\":1,\"n_x\":5.5,\"x\":\"s\"} | {\"n_x\":1} ; {\"n_a\":\"s\"} ; {\"y\":1} ; {\"x\":4}",
                "{'type':'object','propertyNames':{'maxLength':2},'minProperties':1,'maxProperties':2} | {\"ab\":1} ; {\"a\":1,\"b\":2} | {} ; {\"abc\":1} ; {\"a\":1,\"b\":1,\"c\":1}",
                "{'type':'object','properties':{'a':true,'b':true,'c':true},'additionalProperties':false,'minProperties':2,'dependentRequired':{'a':['c']}} | {\"a\":1,\"c\":1} ; {\"b\":1,\"c\":1} | {\"a\":1,\"b\":1} ; {\"c\":1}",
                "{'type':'array','prefixItems':[{'type':'integer'},{'type':'string'}],'items':{'type':'null'},'minItems':1,'maxItems':4} | [1] ; [1,\"a\"] ; [1,\"a\",null,null] | [] ; [\"a\"] ; [1,null] ; [1,\"a\",null,null,null]",
                "{'contains':{'const':1}} | [2,1.0,3] ; [1] ; 5 | [] ; [2] ; [\"1\",null]",
                "{'type':'array','contains':{'minimum':5},'minContains':2,'maxContains':3,'items':{'type':'integer'},'maxItems':5} | [5,1,12] ; [9,9,9,1,2] | [5] ; [] ; [5,5,5,5] ; [9,9,1,1,1,1] ; [5,5,\"a\"]",
                "{'type':'array','prefixItems':[{'type':'string'},true],'contains':{'type':'string'},'maxContains':1} | [\"a\"] ; [\"a\",1,2] | [] ; [\"a\",\"b\"] ; [\"a\",1,\"b\"]",
                "{'contains':{'const':1},'minContains':0,'maxContains':1} | [] ; [2] ; [2,1] | [1,1]",
                "{'type':'array','not':{'contains':{'type':'null'}}} | [] ; [1,\"a\"] | [null] ; [1,null]",
                "{'$defs':{'t':{'type':'array','contains':{'type':'null'},'items':{'anyOf':[{'type':'null'},{'$ref':'#/$defs/t'}]}}},'$ref':'#/$defs/t'} | [null] ; [[[null],null],null] | [] ; [[null]] ; [null,[]]",
                "{'type':'array','items':{'enum':['a','b','c']},'uniqueItems':true,'minItems':2} | [\"c\",\"a\"] ; [\"b\",\"c\",\"a\"] | [\"a\"] ; [\"a\",\"a\"] ; [\"a\",\"\\u0061\"]",
                "{'anyOf':[{'type':'integer','minimum':5},{'type':'boolean'}]} | 5 ; true | 4 ; \"a\"",
                "{'allOf':[{'required':['a']},{'properties':{'a':{'type':'integer'}}},{'properties':{'a':{'minimum':3}}}],'type':'object'} | {\"a\":3} | {\"a\":2} ; {} ; {\"a\":\"x\"}",
                "{'oneOf':[{'type':'integer'},{'type':'number','minimum':2}]} | 1 ; 2.5 | 3 ; 1.5",
                "{'type':'object','oneOf':[{'properties':{'k':{'const':'a'},'x':{}},'additionalProperties':false},{'properties':{'k':{'const':'b'},'y':{}},'additionalProperties':false}]} | {\"k\":\"a\"} ; {\"x\":1} ; {\"k\":\"b\",\"y\":1} | {} ; {\"k\":\"c\"} ; {\"x\":1,\"y\":1}",
                "{'type':'string','not':{'enum':['a','b']}} | \"ab\" ; \"\" | \"a\" ; \"\\u0062\"",
                "{'not':{'type':'object','required':['a']}} | 1 ; {\"b\":1} | {\"a\":1} ; {\"b\":1,\"a\":1}",
                "{'type':'object','properties':{'k':{'type':'string'},'v':true},'required':['k','v'],'if':{'properties':{'k':{'const':'n'}}},'then':{'properties':{'v':{'type':'number'}}},'else':{'properties':{'v':{'type':'null'}}}} | {\"k\":\"n\",\"v\":1} ; {\"k\":\"m\",\"v\":null} | {\"k\":\"n\",\"v\":null} ; {\"k\":\"m\",\"v\":1}",
                "{'$defs':{'t':{'type':'array','items':{'$ref':'#/$defs/t'}}},'$ref':'#/$defs/t','maxItems':1} | [[[],[[]]]] ; [] | [1] ; [[],[]] ; [[1]]",
                "{'type':'object','properties':{'a/b~c':{'$anchor':'x','type':'null'},'d':{'$ref':'#/properties/a~1b~0c'},'e':{'$ref':'#x'}},'required':['e']} | {\"d\":null,\"e\":null} | {\"d\":1,\"e\":null} ; {\"e\":1}",
                "{'type':'object','properties':{'a':{'type':'object','properties':{'b':{'$ref':'#'}},'required':['b']}},'additionalProperties':false} | {} | {\"a\":1}",
                "{'format':'date-time'} | \"2016-12-31T23:59:60Z\" ; \"2024-02-29t00:00:00.5+14:00\" | \"2017-12-31T23:59:60Z\" ; \"2023-02-29T00:00:00Z\" ; \"2023-01-01T24:00:00Z\" ; \"2023-01-01\"",
                "{'type':'string','format':'uuid'} | \"123e4567-e89b-12d3-a456-426614174000\" | \"123e4567e89b12d3a456426614174000\"",
                "{'type':'string','format':'int64'} | \"anything\" | 1",
            })
    void takesExactlyTheValidDocuments(String schema, String valid, String invalid) {
        Grammar grammar = compile(schema.replace('\'', '"'), SchemaOptions.DEFAULT);

        for (String document : valid.split(" ; ")) {
            assertThat(accepts(grammar, document.strip())).as(document).isTrue();
        }
        for (String document : invalid.split(" ; ")) {
            assertThat(accepts(grammar, document.strip())).as(document).isFalse();
        }
    }

    /** A schema that is refused, the field that the error names, and a part of its message. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "{'type':'strin'} | schema.type | is \"strin\", must be one or several of null, boolean",
                "{'properties':{'a':{'minLength':-1}}} | schema.properties.a.minLength | is -1, must be a whole number",
                "{'properties':{'a.b':{'required':'a'}}} | schema.properties[\"a.b\"].required | is \"a\", must be an array of names",
                "{'items':{'contains':{'const':1},'uniqueItems':true}} | schema.items.contains | cannot be decided item by item",
                "{'type':'array','uniqueItems':true} | schema.uniqueItems | can be decided only where all items are of an 'enum'",
                "{'allOf':[{'type':'object'}],'unevaluatedProperties':false} | schema.unevaluatedProperties | absent beside 'allOf'",
                "{'type':'string','format':'iri'} | schema.format | unsupported value 'iri'; allowed: date, date-time",
                "{'type':'string','nullable':true} | schema.nullable | write a type of [..., \"null\"]",
                "{'dependencies':{'a':['b']}} | schema.dependencies | write dependentRequired or dependentSchemas",
                "{'exclusiveMinimum':true} | schema.exclusiveMinimum | is true, must be a number",
                "{'multipleOf':0} | schema.multipleOf | is 0, must be greater than 0",
                "{'type':'number','multipleOf':0.123456789} | schema | a 'multipleOf' of at most 1000",
                "{'$ref':'#'} | schema | refers to itself without anything between",
                "{'$ref':'#/$defs/a','$defs':{'a':{'anyOf':[{'$ref':'#/$defs/b'}]},'b':{'not':{'$ref':'#/$defs/a'}}}} | schema.$defs.a | refers to itself",
                "{'$ref':'#/$defs/a'} | schema.$ref | refers to '#/$defs/a', which is not in the schema",
                "{'$ref':'https://example.com/schema.json'} | schema.$ref | which is not in the schema",
                "{'$schema':'https://example.com/dialect'} | schema.$schema | must be that of JSON Schema 2020-12",
                "{'pattern':'(a'} | schema.pattern | at character",
                "{'not':{'items':{'type':'integer'}}} | schema.not | cannot be negated",
                "{'type':'object','minProperties':2} | schema.minProperties | is 2, which can be decided only without additional",
                "{'minItems':1000000000,'type':'array'} | schema.minItems | at most 100000",
                "{'enum':[1e999999999]} | schema.enum | a number of at most 400 digits",
                "[] | schema | is [], must be a schema",
                "{'a':1,'a':2} | schema | not valid JSON",
            })
    void refusesByPath(String schema, String field, String message) {
        assertThatThrownBy(() -> JsonSchemas.source(schema.replace('\'', '"'), SchemaOptions.DEFAULT))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(message)
                .extracting(e -> ((ConfigException) e).field())
                .isEqualTo(field);
    }

    @Test
    void propertiesComeInTheSchemasOrderOrInAny() {
        String schema = "{\"type\":\"object\",\"properties\":{\"z\":true,\"a\":true,\"m\":true},\"required\":[\"a\"]}";
        Grammar ordered = compile(schema, SchemaOptions.DEFAULT);
        Grammar any = compile(schema, SchemaOptions.DEFAULT.withAnyOrder());

        assertThat(accepts(ordered, "{\"z\":1,\"a\":1,\"other\":1}")).isTrue();
        for (String document : List.of("{\"a\":1,\"z\":1}", "{\"other\":1,\"m\":1,\"a\":2}")) {
            assertThat(accepts(ordered, document)).as(document).isFalse();
            assertThat(accepts(any, document)).as(document).isTrue();
        }
        assertThat(accepts(any, "{\"z\":1,\"m\":1}")).isFalse();
        assertThat(accepts(any, "{\"a\":1,\"m\":1,\"a\":1}")).isFalse();
    }

    @Test
    void whiteSpaceIsBoundedAbsentOrOfAPattern() {
        String schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"}},\"required\":[\"a\"]}";
        String spread = "{\n\t\"a\" : [ 1 ,\r\n 2 ] }";
        Grammar free = compile(schema, SchemaOptions.DEFAULT);
        Grammar compact = compile(schema, COMPACT);
        Grammar pattern = compile(schema, new SchemaOptions(false, false, Optional.of("_?"), false));

        assertThat(accepts(free, spread)).isTrue();
        assertThat(accepts(free, " {\"a\":[]}")).isFalse();
        assertThat(accepts(free, "{" + " ".repeat(65) + "\"a\":[]}")).isFalse();
        assertThat(accepts(compact, "{\"a\":[1,2]}")).isTrue();
        assertThat(accepts(compact, "{\"a\":[1, 2]}")).isFalse();
        assertThat(accepts(pattern, "{_\"a\"_:_[_1,_2_]_}")).isTrue();
        assertThat(accepts(pattern, "{ \"a\":[1]}")).isFalse();
        assertThatThrownBy(() -> JsonSchemas.anyObject(new SchemaOptions(false, false, Optional.of("("), false)))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("whitespace_pattern");
    }

    @Test
    void additionalPropertiesAreLeftOutOnDemand() {
        String schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\"}}}";
        Grammar closed = compile(schema, new SchemaOptions(false, false, Optional.empty(), true));

        assertThat(accepts(closed, "{\"a\":{\"b\":1}}")).isTrue();
        assertThat(accepts(closed, "{\"b\":1}")).isFalse();
    }

    @Test
    void formatsAreEqualByTheirContents() {
        String schema = "{\"type\":\"object\"}";
        OutputFormat format = new OutputFormat.JsonSchema(schema, SchemaOptions.DEFAULT);
        Grammar object = Grammar.compile(new OutputFormat.JsonObject(COMPACT).source());

        assertThat(format).isEqualTo(new OutputFormat.JsonSchema(schema, SchemaOptions.DEFAULT));
        assertThat(accepts(Grammar.compile(format.source()), "{\"a\": 1}")).isTrue();
        assertThat(accepts(object, "{\"a\":[1,{}]}")).isTrue();
        assertThat(accepts(object, "[]")).isFalse();
    }

    @Test
    void schemasWithoutValuesAreRefused() {
        for (String schema : List.of(
                "false",
                "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}",
                "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
                "{\"allOf\":[{\"const\":1},{\"const\":2}]}")) {
            assertThatThrownBy(() -> compile(schema, SchemaOptions.DEFAULT))
                    .as(schema)
                    .isInstanceOf(ConfigException.class);
        }
    }

    @Test
    void alternativesWithoutValuesAreLeftOut() {
        Grammar grammar = compile(
                "{\"type\":\"object\",\"properties\":{\"a\":{\"allOf\":[{\"const\":1},{\"const\":2}]},\"b\":true}}",
                COMPACT);

        assertThat(accepts(grammar, "{\"b\":1}")).isTrue();
        assertThat(accepts(grammar, "{\"a\":1}")).isFalse();
    }

    @Test
    void manyAlternativesWithATagAreTaken() {
        String alternatives = IntStream.range(0, 80)
                .mapToObj(i -> "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"k" + i
                        + "\"}},\"required\":[\"kind\"]}")
                .collect(Collectors.joining(","));
        Grammar grammar = compile("{\"oneOf\":[" + alternatives + "]}", COMPACT);

        assertThat(accepts(grammar, "{\"kind\":\"k79\"}")).isTrue();
        assertThat(accepts(grammar, "{\"kind\":\"k80\"}")).isFalse();
    }

    @Test
    void lengthsBesidePatternsAreCounted() {
        for (String pattern : List.of("^.*$", "[a-z]", "^[^/]+$", "^(?!x-).*$", "^[A-Za-z0-9_-]+$")) {
            Grammar grammar = compile(
                    "{\"type\":\"string\",\"pattern\":\"%s\",\"minLength\":3,\"maxLength\":255}".formatted(pattern),
                    SchemaOptions.DEFAULT);
            for (int length : new int[] {0, 2, 3, 100, 255, 256}) {
                assertThat(accepts(grammar, "\"" + "a".repeat(length) + "\""))
                        .as("%d of %s", length, pattern)
                        .isEqualTo(length >= 3 && length <= 255);
            }
        }
    }

    @Test
    void lengthsOfTextsWithoutAnEndMayBeLarge() {
        for (String pattern : List.of("^[a-z]{1,50}.*$", "^(ab)*$", "^a*$", "^((ab)*|(abab)*|(ababab)*)$")) {
            Grammar grammar = compile(
                    "{\"type\":\"string\",\"pattern\":\"%s\",\"minLength\":70000,\"maxLength\":2000000000}"
                            .formatted(pattern),
                    SchemaOptions.DEFAULT);
            String letters = pattern.contains("b") ? "ab" : "aa";
            assertThat(accepts(grammar, "\"" + letters.repeat(34_999) + "\""))
                    .as(pattern)
                    .isFalse();
            assertThat(accepts(grammar, "\"" + letters.repeat(35_000) + "\""))
                    .as(pattern)
                    .isTrue();
        }
        Grammar items = compile(
                "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":3},\"maxItems\":2000000000}",
                COMPACT);
        assertThat(accepts(items, "[1,2,3,3,3]")).isTrue();
        assertThat(accepts(items, "[1,3]")).isFalse();
        Grammar fours = compile(
                "{\"type\":\"string\",\"pattern\":\"^(?:[0-9a-f]{4})*$\",\"maxLength\":4099}", SchemaOptions.DEFAULT);
        for (int length : new int[] {0, 4, 4096, 4098, 4100}) {
            assertThat(accepts(fours, "\"" + "0".repeat(length) + "\""))
                    .as("%d", length)
                    .isEqualTo(length % 4 == 0 && length < 4099);
        }
    }

    @Test
    void manyLengthsOfOneFormatAreOneProduct() {
        String schema = "{\"type\":\"object\",\"properties\":{%s}}"
                .formatted(list(60, i -> "\"a%d\":{\"format\":\"email\",\"maxLength\":%d}".formatted(i, 100 + i)));

        assertThat(accepts(compile(schema, COMPACT), "{\"a0\":\"a@b.example\"}"))
                .isTrue();
    }

    @Test
    void schemasAfterOneThatTookAllStepsTakeFew() {
        SchemaRules rules = new SchemaRules(SchemaOptions.DEFAULT);
        ObjectNode schema = JsonNodeFactory.instance.objectNode();
        schema.put("type", "string").put("minLength", 1).put("pattern", "^(a|b)*a(a|b){30}$");
        assertThatThrownBy(() -> rules.add(schema)).hasMessageContaining("too large");
        schema.remove("pattern");
        schema.put("format", "email");
        assertThatThrownBy(() -> rules.add(schema)).hasMessageContaining("too large");
        schema.put("pattern", "^[a-z]+$").remove("format");
        rules.add(schema);
    }

    @Test
    @Timeout(300)
    void hostileSchemasAreRefusedSoon() {
        String alternatives = IntStream.range(0, 40)
                .mapToObj(i -> "{\"anyOf\":[{\"required\":[\"a" + i + "\"]},{\"required\":[\"b" + i + "\"]}]}")
                .collect(Collectors.joining(","));
        List<String> schemas = List.of(
                "{\"allOf\":[" + alternatives + "]}",
                "{\"enum\":[1" + ",1".repeat(20_000) + "]}",
                "{\"a\":".repeat(300) + "{}" + "}".repeat(300),
                "{\"items\":".repeat(100) + "{}" + "}".repeat(100),
                "\"" + "a".repeat(2 << 20) + "\"",
                "{\"$ref\":\"#/$defs/0\",\"$defs\":{%s,\"4000\":{}}}"
                        .formatted(list(4000, i -> "\"%d\":{\"$ref\":\"#/$defs/%d\"}".formatted(i, i + 1))),
                "{\"$ref\":\"#/$defs/0\",\"$defs\":{%s,\"4000\":{}}}"
                        .formatted(
                                list(4000, i -> "\"%d\":{\"allOf\":[{\"$ref\":\"#/$defs/%d\"}]}".formatted(i, i + 1))),
                "{\"allOf\":[%s]}"
                        .formatted(list(
                                1000,
                                i -> "{\"additionalProperties\":{\"minimum\":%d},\"required\":[%s]}"
                                        .formatted(i, list(60, j -> "\"%d_%d\"".formatted(i, j))))),
                "{\"pattern\":\"^(a|b|c|d|e){0,2000}$\",\"enum\":[%s]}"
                        .formatted(list(9000, i -> "\"" + "a".repeat(90) + i + "\"")),
                "{\"type\":\"integer\",\"not\":{\"enum\":[%s]}}".formatted(list(5000, i -> "" + 7 * i)),
                "{\"properties\":{%s}}"
                        .formatted(list(
                                400,
                                i -> "\"%d\":{\"minimum\":%d.5,\"maximum\":%d.25,\"multipleOf\":0.0%d}"
                                        .formatted(i, -i, i * 104729L, 1 + i % 9))),
                "{\"properties\":{%s}}".formatted(list(2000, i -> "\"%d\":{}".formatted(i))),
                "{\"properties\":{%s}}"
                        .formatted(list(
                                100,
                                i ->
                                        "\"%d\":{\"pattern\":\"^a(?!(x|y)*x(x|y){10}%d$).*$\",\"minLength\":1,\"type\":\"string\"}"
                                                .formatted(i, i))),
                "{\"patternProperties\":{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{},\"f\":{\"type\":\"null\"}}}");
        for (String schema : schemas) {
            assertThatThrownBy(() -> JsonSchemas.source(schema, SchemaOptions.DEFAULT))
                    .as(schema.substring(0, Math.min(80, schema.length())))
                    .isInstanceOf(ConfigException.class);
        }
    }

    private static String list(int count, IntFunction<String> element) {
        return IntStream.range(0, count).mapToObj(element).collect(Collectors.joining(","));
    }

    private static Grammar compile(String schema, SchemaOptions options) {
        return Grammar.compile(JsonSchemas.source(schema, options));
    }

    private static boolean accepts(Grammar grammar, String document) {
        return grammar.accepts(document.getBytes(StandardCharsets.UTF_8));
    }
}
