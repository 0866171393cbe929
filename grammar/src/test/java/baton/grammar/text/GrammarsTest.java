package baton.grammar.text;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.util.List;
import org.junit.jupiter.api.Test;

class GrammarsTest {
    @Test
    void ebnfOfXgrammar() {
        check("""
                # arithmetic
                root ::= expr ("=" expr)*   # equations
                expr ::= term ([-+*/] term)*
                term ::= num
                  | "(" expr ")"
                num  ::= [0-9]+ (= [^0-9])
                """, List.of("1+2", "(3*4)-5=7", "2=2=2"), List.of("", "1+", "(1", "1 + 2"));
        check(
                "root ::= \"\" | \"a\"{2} | \"b\"{1,} | (\"c\" \"d\"?){0,2}",
                List.of("", "aa", "bbb", "cdc"), List.of("a", "aab", "ccc"));
        check(
                "root ::= \"\\x41\\u00e9\\U0001F600\\n\\\"\" [^\\]\\n-] [\\-a-c] ()",
                List.of("Aé😀\n\"x-", "Aé😀\n\"xb"),
                List.of("Aé😀\n\"]-", "Aé😀\n\"x]"));
        check("root[capture=\"x\"] ::= my-rule.1\nmy-rule.1 ::= [^]", List.of("a", "\n"), List.of("", "ab"));
    }

    @Test
    void ebnfMacros() {
        check("root ::= \"ID-\" Regex(\"[0-9]{2}.\")", List.of("ID-12x", "ID-12\n"), List.of("ID-1x"));
        check("root ::= Regex(\"a.\", flags=\"i\")", List.of("Ab"), List.of("a\n"));
        String dispatch = """
                root ::= TagDispatch(("<t>", body), ("<u>", body), %s)
                body ::= "{" [^}]* "}"
                """;
        check(
                dispatch.formatted("loop_after_dispatch=true, excludes=(\"</a>\",)"),
                List.of("", "no tag", "a<t>{x}b<u>{}c", "<t>{}<t>{}", "an open <t"),
                List.of("<t>", "<t>x", "a<t>{", "a</a>", "<t>{}</a>"));
        check(
                dispatch.formatted("loop_after_dispatch=false"),
                List.of("", "text", "a<t>{x}"),
                List.of("a<t>{x}b", "<t>{}<t>{}"));
    }

    @Test
    void larkOfLlguidance() {
        check(
                """
                %import common.INT
                %import common (WS, CNAME)
                %ignore WS
                // a list
                ?start: item ("," item)* -> list
                !item.2: "id=" INT
                    | CNAME   # a name
                """,
                List.of("id=1", "id=1, id=42", "id=1 ,id=2 , x ", "id= 1"),
                List.of("", " id=1", "id=1,", "i d=1", "id=1 2"));
        check("""
                start: "a"~2 "b"~1..2 ["c"] ("d" | "e"){2,} "f"i "x".."z"
                """, List.of("aabcdeFx", "aabbeeefz"), List.of("abddfx", "aabcdFx", "aabddfa"));
        check("""
                start: value
                value: "x" | "(" value ")" | "[" (value ("," value)*)? "]"
                """, List.of("x", "((x))", "[x,[x],(x)]", "[]"), List.of("(x", "[x,]"));
        check("start: /a.b/ | /Σk+/i | /c.d/s", List.of("acb", "ΣkK", "c\nd"), List.of("a\nb", "σk"));
        check("start: /a\\/b/ \"\\u03bb\\\"\"", List.of("a/bλ\""), List.of("a\\/bλ\""));
        check("start: A & ~B\nA: /[ab]*/\nB: /b*/", List.of("a", "bba"), List.of("", "bb", "c"));
        check(
                "start: ESCAPED SIGNED\n%import common.ESCAPED_STRING -> ESCAPED\n%import common.SIGNED_NUMBER -> SIGNED\n",
                List.of("\"a\\\"b\"-1.5e3", "\"\"7", "\"x\"1."), List.of("\"a\"b\"1", "\"\"e3"));
        check("start:\n", List.of(""), List.of("a"));
        check(
                "start: \"a\" %json {\"const\": \"}\"} \"b\"\n%ignore \" \"",
                List.of("a\"}\"b", "a \"}\" b"), List.of("a\"}\"", "ab"));
    }

    @Test
    void larkSpecialTokensAndLazyRules() {
        check(
                "start: <|tool|> \"a\" <|end|>",
                List.of("\uD800<|tool|>\uD800a\uD800<|end|>\uD800"),
                List.of("<|tool|>a<|end|>"));
        check("""
                start: (foo | bar)* tail
                tail: TEXT
                foo_head[lazy]: TEXT "<f"
                foo: foo_head "=a>" /[a-z]+/ "</f>"
                bar_head[suffix="<f"]: TEXT
                bar: bar_head "=b>" /[0-9]+/ "</f>"
                TEXT: /(.|\\n)*/
                """, List.of("", "text", "x<f=a>q</f>", "x<f=b>1</f>y<f=a>z</f>"), List.of());
        check("start: head \"!\"\nhead[lazy]: /[a-z]*;/", List.of("ab;!"), List.of("ab;;!", "ab!"));
    }

    @Test
    void errorsNameLineColumnAndTheRightForm() {
        refused("root ::= a", "grammar: line 1, column 10: 'a' is not defined; write a ::= ...");
        refused("x ::= \"a\"", "grammar: line 1, column 1: the rule 'root' is missing; write root ::= ...");
        refused("root ::= \"a\n", "grammar: line 1, column 10: the string has no end on its line");
        refused("root ::= \"a\"\nroot ::= \"b\"", "grammar: line 2, column 1: 'root' is defined twice");
        refused("root ::= (\"a\"", "grammar: line 1, column 14: the grammar ends where ')' must be");
        refused("root ::= \"a\"**", "grammar: line 1, column 14: a repetition is repeated; write (...) around it");
        refused("root ::= [\\d]", "grammar: line 1, column 11: '\\d' is no escape");
        refused("root ::= [b-a]", "grammar: line 1, column 12: the range is in the wrong order");
        refused("root ::= Token(1)", "grammar: line 1, column 10: the macro 'Token' is not supported");
        refused("root[lazy] ::= \"a\"", "grammar: line 1, column 5: the option 'lazy' of rules is not supported");
        refused(
                "root ::= \"a\" | | \"b\"",
                "grammar: line 1, column 16: '|' is where a string, a class, a rule or a group (\"\" is the empty text)"
                        + " must be");
        refused(
                "root ::= (\"aaaaa\"{1000}){1000}",
                "grammar: line 1, column 25: the repetition has more than 65536 characters and rules if it is written out");
        refused("root ::= " + "(".repeat(200), "grammar: line 1, column 110: groups are nested deeper than 100");
        refused("root ::= \"a\"{x}", "grammar: line 1, column 13: the counts are missing; write {2} or {2,4}");
        refused("start: a", "grammar: line 1, column 8: 'a' is not defined; write a: ...");
        refused("rule: \"a\"", "grammar: line 1, column 1: the rule 'start' is missing; write start: ...");
        refused(
                "start: x{\"a\"}\n",
                "grammar: line 1, column 9: the counts are missing; write {2} or {2,4}; templates are not supported");
        refused(
                "start: \"a\"\nx{y}: y",
                "grammar: line 2, column 2: templates are not supported; write a rule for each use of 'x'");
        refused(
                "start: A\nA: b\nb: \"c\"",
                "grammar: line 2, column 4: the rule 'b' cannot be part of a terminal;"
                        + " give the terminal a name in lower case");
        refused("start: /a(/", "grammar: line 1, column 8: regex: at character 2: the group is not closed");
        refused("start: /a/x", "grammar: line 1, column 8: the flags 'x' are not supported; write i, s or u");
        refused(
                "%declare A\nstart: A",
                "grammar: line 1, column 1: '%declare' is not supported; write %import or %ignore");
        refused(
                "%import .x.Y\n",
                "grammar: line 1, column 9: only 'common' can be imported; write %import common.NAME");
        refused("start: \"a\" )", "grammar: line 1, column 12: ')' is where the end of the line must be");
        refused(
                "start[max_tokens=5]: \"a\"",
                "grammar: line 1, column 7: the option 'max_tokens' of rules is not supported");
        refused(" \n", "grammar: is empty, must be a grammar in EBNF (root ::= ...) or Lark (start: ...)");
    }

    @Test
    void rulesMayBeginWithThemselves() {
        check("root ::= root \"a\" | \"a\"", List.of("a", "aaa"), List.of("", "ab"));
        check(
                "start: sum\nsum: sum \"+\" item | item\nitem: item \"*\" N | N | \"(\" sum \")\"\nN: /[0-9]+/",
                List.of("1+2*3", "(1+2)*3+44"),
                List.of("1+", "*2"));
    }

    private static void check(String grammar, List<String> valid, List<String> invalid) {
        Languages.check(grammar, Grammars.source(grammar), valid, invalid);
    }

    private static void refused(String grammar, String message) {
        assertThatThrownBy(() -> Grammars.source(grammar))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }
}
